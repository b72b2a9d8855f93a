"""Learning: losses, metrics, schedules, the optimizer, the training step, devices."""
