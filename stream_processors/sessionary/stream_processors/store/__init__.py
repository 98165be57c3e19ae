"""Where rows live between transactions."""
