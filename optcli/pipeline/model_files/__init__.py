"""Model files that no recipe built, opened as artifacts and measured side by side."""
