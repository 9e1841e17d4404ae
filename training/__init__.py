"""What do all models and trainers share? Dense layers, dropout, the learning rate over a run, when to stop."""
