"""From a log in any format to a prepared store: readers, staging, vocabularies, samples of each split."""
