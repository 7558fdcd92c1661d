"""Serving: a promise becomes a configuration, a bundle that keeps to it, and a load test of both."""
