"""Other trackers' runs that core series and findings of a run are echoed to, so that people keep their habits."""
