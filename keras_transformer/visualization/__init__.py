"""Pictures: attention maps, position encodings, schedules, the curves of trainings."""
