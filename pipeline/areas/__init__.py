"""Where things are: areas that are searched for those that have a message's place, and clients that move."""
