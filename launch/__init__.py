"""From a recipe to a trained model: command line, run folders, checkpoints, progress and plots."""
