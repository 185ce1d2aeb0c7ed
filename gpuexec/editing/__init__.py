"""Models made of models: parts are taken, named anew, joined; the model they come from stays as it was."""
