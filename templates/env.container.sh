#? set site = site_facts(cookiecutter.site)
#? set plan = plan_of(cookiecutter)
#? set runtime = cookiecutter.runtime
#? set suffix = "sif" if runtime == "apptainer" else "sqsh"
# ---- container ----------------------------------------------------------------------------------
#? if runtime == "shifter"
# The image, as the registry names it; slurm/build_container.sh pulls it.
IMAGE="${IMAGE:-{{ cookiecutter.image }}}"
#? elif runtime == "podman-hpc"
# The image; slurm/build_container.sh makes it.
IMAGE="${IMAGE:-localhost/{{ plan.image_name }}:latest}"
#? elif plan.pulls_image
# The image, as the registry names it, or the path of a .sqsh file. The container engine pulls it
# for the first job, and keeps it in $SCRATCH/.edf_imagestore.
IMAGE="${IMAGE:-{{ cookiecutter.image }}}"
#? elif plan.image_source
# The image file, some gigabytes; slurm/build_container.sh makes it.
IMAGE="${IMAGE:-$PROJECT_DIR/container/{{ cookiecutter.project ~ "." ~ suffix }}}"
#? else
# The image file. To add packages: slurm/docs/container.md.
IMAGE="${IMAGE:-{{ cookiecutter.image }}}"
#? endif
#? if runtime == "edf"
# To change mounts, network or variables of the container, edit
# container/{{ cookiecutter.project }}.toml.

#? elif runtime == "shifter"
# Programs in the container see the file systems of the site.

#? else
#? if runtime == "enroot"
# Each node unpacks the image into a folder that the site chose. If that lies below $HOME, choose
# one on the nodes' disks: export ENROOT_DATA_PATH=/local/$USER/enroot
#? elif runtime == "pyxis"
# A name under which nodes keep the unpacked image, so that the next job starts sooner. A new or
# rebuilt IMAGE needs a new name. Remove the old one on the nodes: enroot remove --force pyxis_NAME
KEEP_CONTAINER="${KEEP_CONTAINER:-}"
#? endif
# Folders that programs in the container see, under the same names as outside, a line each. They also
# see the project, the folder of submission and the program's folder.
BINDS=(
    #? for folder in site.binds or ["$HOME"]
    "{{ folder }}"
    #? endfor
)

#? endif
