"""Files of unknown origin, inspected before anything of them is loaded: nothing is executed."""
