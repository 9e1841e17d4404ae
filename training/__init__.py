"""What do all trainers share? The learning rate over a run, dropout by counters, and when to stop."""
