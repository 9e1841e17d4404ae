"""Several hosts with real links between them, on one Linux machine."""
