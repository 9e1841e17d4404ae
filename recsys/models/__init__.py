"""What is computed from embeddings: DLRM, DCN-v2, sequence tower, two towers."""
