"""Colours of classes and objects that differ clearly from each other."""

import functools

import numpy as np

# RGB. First yellow and cyan, which show on most photographs and differ for colour-blind people.
# Each other colour is the one with the largest difference (CIEDE2000) from those before it, on a
# dark grey image at the opacity of a picture. Its lightness in CIELAB is at least 45 and its
# chroma at least 25, so that it looks neither black nor like the grey of an image.
_COLOURS = (
    'ffcc00 00ccff ff0088 008833 bb4400 eeccff 4455ff 99ffbb ffaa88 887700 007788 9977aa 88cc00'
    ' 88aaff cc00ff ffeebb ff88aa ee0022 00bbaa ee8800 99aa77 ff77ff 88ffff 886644 0088dd aa6666'
    ' 00cc55 eeff22 ccaa77 ff6644 00ff11 669911 667744 6677aa aa77ff cccc66 aa44aa 559977 bbff77'
    ' aa6600 88ccaa 22eecc ee5566 ff6600 ffbbcc bbaa00 998855 cc8855 cc6699 cc99dd ffbb55 33aabb'
    ' 88ccff ccddaa 9999cc 88cc66 00ff88 ff22dd bb4433 8844dd ff2200 bbccff ffff99 00aa00 5599bb'
    ' cc2255 bb8800 55aa55 66cccc dd9999 5588ff ffcc99 008877 0066dd ccffdd aa6644 44aaff 999933'
    ' ffdd77 aaff00 44bb88 7766cc cc0099 ff55bb ff99dd 667711 33cc00 cc55ee 995588 bbaaff 337799'
    ' 00dd99 ff8877 eeaa00 447755 ff9955 cc6611 cccc00 009966 00eeff 886622 cc77cc cc88aa 8888ee'
    ' ddbb44 228800 558844 88ddee 77ee66 cc9944 ddffaa ddaa88 cc7766 00aadd bbdd44 7799cc ffee55'
    ' ff4488 88ffdd dd7788 bbaa55 33ffbb 99dd99 ddaacc aa88dd 4477aa bb4477 ddcc99 66bbdd aabb33'
    ' 77aa77 bbbb88 ff1155 ff4444 88aa44 dd5522 9966bb 229999 dd7744 eeaa66 bbdd88 ee99ff bb5566'
    ' cc22cc 77ee22 66bb33 bbaadd ffbbee 55aa99 00ccdd eeffcc 4466cc cc88ff 00aa55 aa7744 dd55cc'
    ' dd0000 aa8833 aabb66 776699 dd4499 888844 33bbff 7766ff 88aa00 ff77bb cc3344 55dd77 1188aa'
    ' 66ddcc 9922ff bb7788 eeeeaa cc3311 66ddaa 99bbee 00aa88 ff8822 ff9999 33ccaa 33dd44 ddff66'
    ' ff6688 ffbbaa 99ddff aa55ff 55ffee 99eedd cc7700 338855 dd8833 aa7799 aacc99 779955 99dd55'
    ' 448877 cc6666 aa5511 999966 ff4400 339933 ee7777 77ff99 aa8855 dd5500 ff8855 ffee00 00dddd'
    ' 558822 ddbb00 bb3388 66cc88 6666aa 11ddff ffddaa 887733 6677ee 00bbdd 33bbbb dd5544 99aadd'
    ' 8877bb 77bbaa cc6644 dddd55 aa33dd 0099dd 77aadd ff55ee bb88bb dd8866 dd5577 ee22ff aaee88'
    ' 996655 778800 9955cc aaddbb 5599dd bb9900 bb66aa dd0066 2288ff dd99cc bbbbee ee99aa bbaa77'
    ' ee22aa 7788cc ee6699 55aa00 227777 999900 ee9900 9988bb 22bb33 dd0033 aacc55 00ff55 ff77dd'
    ' ee3322 88bb77 ee9988 ddee88 ffcc44 55aadd aa9955 44ee99 aaaa66 66bbcc aacc00 4499aa ccee22'
    ' cc9966 ddbb77 ffee99 ddaaff ffaacc 3388bb 00cc77 7744ff aa5544 55aaaa aa7711 aaeebb 886600'
    ' ddaa44 ff2244 dd77bb 00ffff bbcc88 55cc55 dd3377 449955 cc44aa 9977dd 0099aa ff6622 3366ff'
    ' 77bbff'
)


@functools.cache
def _table() -> np.ndarray:
    return np.array([list(bytes.fromhex(colour)) for colour in _COLOURS.split()], np.uint8)


def distinct_colours(count: int) -> np.ndarray:
    """Return RGB colours (count, 3), uint8. They repeat after 300, and the first differ most."""
    table = _table()
    return table[np.arange(count) % len(table)]
