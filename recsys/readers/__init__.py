"""Click logs in the formats that they come in, as streams of Arrow record batches."""
