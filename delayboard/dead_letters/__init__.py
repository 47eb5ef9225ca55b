"""Dead letters: browse them without harm, replay them without loss."""
