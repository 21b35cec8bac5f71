"""The modules of the watched models, heard at updates that are sampled."""
