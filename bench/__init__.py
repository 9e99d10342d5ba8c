"""The benchmark: Viaduct and its peers, measured in the same run by the same generator."""
