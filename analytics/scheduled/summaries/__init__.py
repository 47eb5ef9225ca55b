"""Numbers over the list: counts, histograms, how complete the list is."""
