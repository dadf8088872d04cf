"""Many runs from one plan file: arms and seeds are trained, evaluated and put into one table."""
