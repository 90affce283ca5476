//! How HotSpot describes itself to its Serviceability Agent: tables of fields and constants, exported from libjvm.so
//! (OpenJDK, `src/hotspot/share/runtime/vmStructs.hpp`). They name what of the VM's inside can be relied upon in this very build.

use std::collections::HashMap;
use std::ffi::CStr;

use crate::Error;
use crate::memory::Memory;

/// Where a field is: an offset into an object, or an address if it is static.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    pub offset: u64,
    pub address: u64,
}

/// The tables of a JVM.
#[derive(Debug, Default)]
pub struct VmStructs {
    fields: HashMap<(String, String), Field>,
    constants: HashMap<String, i32>,
}

/// Tables have some thousand entries; one without an end is none.
const ENTRIES_MAX: u64 = 100_000;

impl VmStructs {
    /// Reads the tables whose exported symbols `symbol` finds.
    pub fn read(memory: &impl Memory, symbol: impl Fn(&CStr) -> Option<u64>) -> Result<VmStructs, Error> {
        // Each symbol is a variable of 64 bits that holds an address, an offset or a length.
        let value = |name: &CStr| {
            let at = symbol(name).ok_or_else(|| Error::Undescribed(name.to_string_lossy().into_owned()))?;
            memory.u64(at)
        };
        let mut tables = VmStructs::default();
        let type_name = value(c"gHotSpotVMStructEntryTypeNameOffset")?;
        let field_name = value(c"gHotSpotVMStructEntryFieldNameOffset")?;
        let offset = value(c"gHotSpotVMStructEntryOffsetOffset")?;
        let address = value(c"gHotSpotVMStructEntryAddressOffset")?;
        let stride = value(c"gHotSpotVMStructEntryArrayStride")?;
        let start = value(c"gHotSpotVMStructs")?;
        for entry in (0..ENTRIES_MAX).map(|number| start + number * stride) {
            let name = memory.u64(entry + type_name)?;
            if name == 0 {
                break;
            }
            let field = Field { offset: memory.u64(entry + offset)?, address: memory.u64(entry + address)? };
            tables.fields.insert((memory.text(name)?, memory.text(memory.u64(entry + field_name)?)?), field);
        }
        let name_offset = value(c"gHotSpotVMIntConstantEntryNameOffset")?;
        let value_offset = value(c"gHotSpotVMIntConstantEntryValueOffset")?;
        let stride = value(c"gHotSpotVMIntConstantEntryArrayStride")?;
        let start = value(c"gHotSpotVMIntConstants")?;
        for entry in (0..ENTRIES_MAX).map(|number| start + number * stride) {
            let name = memory.u64(entry + name_offset)?;
            if name == 0 {
                break;
            }
            tables.constants.insert(memory.text(name)?, memory.u32(entry + value_offset)? as i32);
        }
        Ok(tables)
    }

    /// A field of the first of `types` that has it: names differ between versions.
    pub fn field(&self, types: &[&str], field: &str) -> Result<Field, Error> {
        let found = types.iter().find_map(|name| self.fields.get(&((*name).to_owned(), field.to_owned())));
        found.copied().ok_or_else(|| Error::Undescribed(format!("{}::{field}", types.join("|"))))
    }

    /// The constant `name` of the first of `types` that has it.
    pub fn constant(&self, types: &[&str], name: &str) -> Result<i32, Error> {
        let found = types.iter().find_map(|kind| self.constants.get(&format!("{kind}::{name}")));
        found.copied().ok_or_else(|| Error::Undescribed(format!("{}::{name}", types.join("|"))))
    }

    #[cfg(test)]
    pub(crate) fn for_test(fields: &[(&str, &str, Field)], constants: &[(&str, i32)]) -> VmStructs {
        VmStructs {
            fields: fields.iter().map(|(kind, name, field)| (((*kind).to_owned(), (*name).to_owned()), *field)).collect(),
            constants: constants.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect(),
        }
    }
}
