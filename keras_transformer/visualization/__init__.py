"""Pictures: attention maps, positional encodings, schedules, the curves of trainings."""
