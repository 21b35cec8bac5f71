"""Where everything is kept; the only room that knows SQLAlchemy."""
