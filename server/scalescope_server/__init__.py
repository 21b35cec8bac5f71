"""The service: takes telemetry in, keeps it, judges it, shows it."""
