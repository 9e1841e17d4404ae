"""What is done to the ids of a prepared log while it is read: cut, clipped, hashed, sorted."""
