"""What passes that quantize share: calibration, ranges, which operators."""
