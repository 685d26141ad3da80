// Finds the extensions of a PJRT plugin's API.
#ifndef TORCH_XLA_EXT_CSRC_PJRT_SHIM_EXTENSIONS_H_
#define TORCH_XLA_EXT_CSRC_PJRT_SHIM_EXTENSIONS_H_

#include "xla/pjrt/c/pjrt_c_api.h"

namespace torch_xla_ext::pjrt_shim {

// The plugin's extension of this type; null if it has none.
template <typename Extension>
const Extension* FindExtension(const PJRT_Api* plugin,
                               PJRT_Extension_Type type) {
  for (const PJRT_Extension_Base* extension = plugin->extension_start;
       extension != nullptr; extension = extension->next) {
    if (extension->type == type) {
      return reinterpret_cast<const Extension*>(extension);
    }
  }
  return nullptr;
}

}  // namespace torch_xla_ext::pjrt_shim

#endif  // TORCH_XLA_EXT_CSRC_PJRT_SHIM_EXTENSIONS_H_
