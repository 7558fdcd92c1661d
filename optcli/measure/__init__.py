"""Measuring artifacts: latency, curves and queues, the profile, the roofline."""
