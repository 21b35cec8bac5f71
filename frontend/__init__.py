"""The pages' files, served as written; read through importlib.resources."""
