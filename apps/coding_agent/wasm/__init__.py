"""Tools compiled to WebAssembly; `docs/wasm_tools.md` says what a module has to look like."""
