"""Studies made with pivot; no part of the package."""
