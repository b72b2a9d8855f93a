"""Files that others may have made, looked at before anything is made of them: nothing is run."""
