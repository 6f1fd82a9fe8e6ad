"""Words that are a program's own and no person's: samplers, an encoder's settings, what it says.

Everything else that stands where such a word is expected may be anything, a prompt too.
"""

from __future__ import annotations

import re

from stagexec.delivery import ffmpeg

_CODECS = """
    auto av1 copy ffv1 flac gif h264 h265 hevc huffyuv jpeg libaom-av1 libopus librav1e libsvtav1 libvpx
    libvpx-vp9 libvorbis libwebp libwebp_anim libx264 libx264rgb libx265 mjpeg mp3 mpeg4 none opus pcm_s16le
    png prores prores_aw prores_ks rawvideo theora vorbis vp8 vp9 webp wrapped_avframe zlib aac ac3 apng
"""
_PRESETS = """
    ultrafast superfast veryfast faster fast medium slow slower veryslow placebo default best good realtime
    hq hp bd ll llhq llhp lossless losslesshp balanced speed quality lowlatency proxy lt standard 4444 4444xq
    p1 p2 p3 p4 p5 p6 p7 high low veryhigh verylow auto none crf cbr vbr cqp
"""
_CONTAINERS = """
    auto mp4 mkv matroska webm mov gif avi apng webp png m4v ogg flac wav mp3 ts mpegts mxf flv
    video/h264-mp4 video/h265-mp4 video/av1-webm video/av1-mp4 video/webm video/ffv1-mkv video/prores
    video/ffmpeg-gif video/nvenc_h264-mp4 video/nvenc_hevc-mp4 video/nvenc_av1-mp4 video/nvenc_h265-mp4
    video/8bit-png video/16bit-png image/gif image/webp image/apng
"""
_PIXELS = """
    auto gray gray8 gray10le gray12le gray16le yuvj420p yuvj422p yuvj444p yuv420p12le yuv422p12le yuv444p12le
    yuva422p yuva444p yuva420p10le gbrp10le gbrp12le gbrap gbrap10le gbrap12le rgb48le rgba64le bgr24 bgra
    nv16 nv21 p016le p210le
"""
_HWACCELS = "auto none cuda cuvid nvdec nvenc vaapi qsv videotoolbox amf vulkan opencl d3d11va dxva2"

_SAMPLERS = """
    ddim ddpm deis dpm_2 dpm_2_ancestral dpm_adaptive dpm_fast dpmpp_2m dpmpp_2m_sde dpmpp_2m_sde_gpu
    dpmpp_2s_ancestral dpmpp_3m_sde dpmpp_sde er_sde euler euler_ancestral exp_heun_2_x0 gradient_estimation
    heun heunpp2 ipndm lcm lms res_multistep sa_solver seeds_2 seeds_3 uni_pc uni_pc_bh2 unipc flowmatch
"""
_SCHEDULERS = """
    beta ddim_uniform exponential karras kl_optimal linear_quadratic normal polyexponential sgm_uniform simple
"""

SETTINGS: dict[str, frozenset[str]] = {
    "sampler": frozenset(_SAMPLERS.split()),
    "scheduler": frozenset(_SCHEDULERS.split()),
    "codec": frozenset((*_CODECS.split(), *ffmpeg.CODECS)),
    "preset": frozenset(_PRESETS.split()),
    "quality": frozenset(_PRESETS.split()),
    "pixel_format": frozenset((*_PIXELS.split(), *ffmpeg.PIXEL_FORMATS)),
    "filters": frozenset(),
    "container": frozenset((*_CONTAINERS.split(), *ffmpeg.CONTAINERS)),
    "encoder_threads": frozenset(("auto",)),
    "hwaccel": frozenset((*_HWACCELS.split(), *ffmpeg.HWACCELS)),
}
"""Field of a condition -> the words that are kept in it as they are."""

_FILTERS = """
    w h x y z n t d iw ih ow oh a sar dar in out in_w in_h out_w out_h main_w main_h overlay_w
    overlay_h width height flags lanczos bicubic bilinear bicublin neighbor area gauss sinc spline
    accurate_rnd full_chroma_int fast_bilinear force_original_aspect_ratio force_divisible_by
    decrease increase disable fps r start end duration start_frame end_frame round zero inf near up
    down pass eof_action pts PTS STARTPTS TB FRAME_RATE N T S min max abs ceil floor trunc mod sin
    cos exp sqrt pow if ifnot not eq gt gte lt lte between clip random mi_mode mc_mode me_mode me
    vsbmc scd search_param mb_size mci dup blend obmc aobmc bilat bidir epzs esa tss ds hexbs color
    black white transparent pix_fmts ratio mode strength sigma sigmaS threshold radius luma_radius
    chroma_radius contrast brightness saturation gamma hue order side type curve inputs outputs
    shortest repeatlast format auto yuv420 yuv422 yuv444 rgb gbrp tff bff parity deint all send_frame
    send_field loop size planes amount luma_msize_x luma_msize_y luma_amount clock cclock dir angle
    zoom pad stats_mode max_colors reserve_transparent dither diff_mode bayer bayer_scale
"""
FILTER_WORDS = frozenset(_FILTERS.split()) | SETTINGS["pixel_format"]
"""What may stand in the options of a filter besides numbers."""

_SAID = """
    a after already an and any are argument arguments as at audio available be because been before between
    bit bitrate both buffer but by can cannot changed channel channels chosen closed codec color command
    conversion converting could create data decode decoder decoding default delivered demuxer denied
    deprecated detected device different directory disk divisible do does done double dropped due
    duration early empty encode encoder encoding end ended enough error exactly exceeded exist exists exit
    exiting expected experimental fail failed failure few file files filter filtergraph filters find finish
    finished first flush for format formats found frame frames from full function get given global graph
    greater greatest had hardware has have header height if ignored image implemented in incorrect
    initialize initialized initializing input inputs instead internal interrupted into invalid is it keyframe
    large larger last layout least left less level lib library list load loading long malformed map mapping
    match matching maximum may memory metadata minimum missing mode more most moov atom multiple must mux
    muxer muxing name need negative new no non not nothing null number odd of old on one only open
    opened opening operation option options or out output outputs packet packets padding parameter
    parameters parse parsing patch permission permitted pipe pixel please plane
    position possible probably problem process profile
    protocol pts dts queue quota range rate reached read reading received recognized reference refused
    registered replace required resource resources return returned same sample samples scale scaled scaler
    seek segment selected set setting should signal size skipping small smaller so some space specified
    specify split splitting standard start started stream streams such supported support switch
    system task terminated terminating than that the then there thread threads time timestamp timestamps to
    too truncated try two type unable undefined unexpected unknown unrecognized unsupported
    unset unspecified use used using valid value values version video was were when which width will with
    within without write writing written wrong you zero broken killed while temporarily unavailable address
    connection server host timed timeout system read-only cross-device link hardlink
    warning info fatal debug verbose panic vost aost vist aist vf af fc enc dec out# in#
    around avfiltergraph avformatcontext code cannot dar description eof external filterchain generic help its
    known lavfi near parent press reopening requested sar selecting sending stop tbn tbr what
    frame= fps= size= speed= parsed scale setsar buffersink abuffer abuffersink aformat
"""
SAID = frozenset(_SAID.split()) | SETTINGS["codec"] | SETTINGS["pixel_format"] | SETTINGS["container"]
"""Words in which ffmpeg and the operating system tell of trouble."""

_TOKENS = re.compile(r"[A-Za-z0-9_]+(?:[-/][A-Za-z0-9_]+)*")
_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,9})?[a-z]?")


def is_said(token: str) -> bool:
    """Does a piece of a line, without spaces, hold nothing but words of SAID, numbers and signs?"""
    rest = _TOKENS.sub("", token)
    return rest.isascii() and all(
        word.lower() in SAID or _NUMBER.fullmatch(word) or _numbered(word) for word in _TOKENS.findall(token)
    )


def _numbered(word: str) -> bool:
    """`scale_0`, `frame3`, `mp4`: known words and numbers joined by signs."""
    pieces = [piece for piece in re.split(r"[-_/]", word) if piece]
    return all(
        piece.lower() in SAID
        or piece.rstrip("0123456789").lower() in SAID
        or _NUMBER.fullmatch(piece) is not None
        for piece in pieces
    )
