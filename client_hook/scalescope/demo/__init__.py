"""Real small trainings, healthy and broken, behind `scalescope demo`."""
