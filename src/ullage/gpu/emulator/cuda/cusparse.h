/* What the files of libcusparse share. */
#ifndef ULLAGE_CUSPARSE_H
#define ULLAGE_CUSPARSE_H

#include "card.h"

struct sparse {
  int64_t rows, columns, elements;
};

#endif
