"""The DFlash and DFlash2 draft model: blocks of tokens proposed in one pass.

`LoadedDraft.load` reads a file (`naming.ARCHITECTURES`) for its target and tells what it needs;
`allocate` makes the `Draft`. After every step the engine hands it the target's residual stream
behind `target_layers`, with the rows that stay: `inject`. For slots that speculate it asks
`propose`, which answers all of them in one pass. The files, from the outside in: `loaded`, `draft`,
`blocks` (batches), `rings` (the state of slots), `model`, `layers`, `config`, `naming`, `tensors`;
`write` writes such files.
"""
