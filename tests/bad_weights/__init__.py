"""Bad files of weights and states: made by number, tried in processes of their own."""
