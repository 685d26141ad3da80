def install(platform): pass
