"""Where does an embedding row live? Tables, plans, and simple planners."""
