"""What the training programs import. A package, so that its modules do not shadow yours of the same names."""
