"""Where the hook listens: one file for each thing that is listened to."""
