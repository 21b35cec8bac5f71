"""Alerts: rules in sentences, evaluated over the updates of a run, pure: no database, no clock, no sockets."""
