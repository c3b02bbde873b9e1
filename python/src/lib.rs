//! The implementation of `import cowslip`: the engine's types as Python's, with addresses as buffers. The
//! package around it (`cowslip/*.py`) makes numpy arrays of them.

mod allocator;
mod arena;
mod errors;
mod image;
mod memory;
mod signals;
mod template;
mod view;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("CHUNK_BYTES", cowslip::units::CHUNK_BYTES)?;
    module.add("STATE_KEY", image::STATE_KEY)?;
    module.add_class::<arena::Arena>()?;
    module.add_class::<arena::Frozen>()?;
    module.add_class::<arena::Watch>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<template::Template>()?;
    module.add_class::<template::Server>()?;
    module.add_class::<template::Clone>()?;
    module.add_class::<image::Save>()?;
    module.add_class::<image::Restoring>()?;
    module.add_function(wrap_pyfunction!(allocator::set_handler, module)?)?;
    module.add_function(wrap_pyfunction!(image::restore, module)?)?;
    module.add_function(wrap_pyfunction!(template::template_via, module)?)?;
    module.add_function(wrap_pyfunction!(image::describe, module)?)?;
    module.add_function(wrap_pyfunction!(image::identity, module)?)?;
    module.add_function(wrap_pyfunction!(image::verify, module)?)?;
    module.add_function(wrap_pyfunction!(arena::doctor_json, module)?)
}
