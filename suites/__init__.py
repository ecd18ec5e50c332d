"""Where the harness and the kernels meet: operations declared as suites, over real model shapes.

``harness`` and ``kernels`` never import from here, and neither knows the other. ``suites.models`` holds the shapes
as plain data and imports nothing but the standard library, so a benchmark of somebody else's can use it alone.
"""
