"""new_figures: attention maps, position encodings, schedules, the curves of trainings."""
