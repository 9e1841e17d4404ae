"""What do all models and trainers share? Dense layers, dropout by counters, the learning rate over a run, when to stop."""
