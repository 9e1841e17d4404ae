"""Who asks, for graphs: graphs, samplers, layers, models, minibatch training, evaluation and inference."""
