"""Documents of other programs, made here."""


def pdf(*pages: list[str]) -> bytes:
    """A PDF of such lines on each page."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    kids = []
    for lines in pages:
        text = " ".join(f"1 0 0 1 72 {720 - 14 * n} Tm ({line}) Tj" for n, line in enumerate(lines))
        stream = f"BT /F1 12 Tf {text} ET"
        kids.append(f"{len(objects) + 1} 0 R")
        font = "<< /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >>"
        about = f"/MediaBox [0 0 612 792] /Resources {font} /Contents {len(objects) + 2} 0 R"
        objects.append(f"<< /Type /Page /Parent 2 0 R {about} >>")
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    made, places = b"%PDF-1.4\n", []
    for n, each in enumerate(objects, start=1):
        places.append(len(made))
        made += f"{n} 0 obj\n{each}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(made)}\n%%EOF\n"
    return made + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()
