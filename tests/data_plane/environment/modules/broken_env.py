raise ValueError("broken on import")
