"""asv result files without asv: written where the numbers were measured, and compared so that nothing missing passes.

``asv compare`` always exits 0, and takes a missing benchmark, another version or another environment for "no change".
"""
