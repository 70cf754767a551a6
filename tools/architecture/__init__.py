"""The dependency policy of the apps and the checks that the build runs over it."""
