"""The pipeline: from a recipe to artifacts, measurements and one report."""
